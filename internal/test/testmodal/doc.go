// Package testmodal is test code: a server on the loopback interface that speaks Modal's
// protocol, so that tests can use Modal's own, unmodified SDK without Modal. It is not Modal: a
// test that passes with it was driven by Modal's SDK, but did not run at Modal.
//
// One plaintext port serves both services, the control plane and the command router. A sandbox
// is a tree of processes of this machine. If the tests run as root on Linux, it has its own
// namespaces and a root file system assembled from this machine's programs. Otherwise it is
// only a directory and a process group.
package testmodal
