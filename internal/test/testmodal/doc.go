// Package testmodal is test code: a server on the loopback interface that speaks
// Modal's protocol, so that Modal's own SDK, unmodified, can be run without Modal.
// It is not Modal and never called so: what passes against it has been driven by
// Modal's SDK, not run by Modal.
//
// One port in plain text hosts both services, the control plane and the router of
// tasks' commands. A sandbox is a tree of processes of this machine. Where the
// tests are root on Linux it has namespaces and a root of its own, put together
// from this machine's programs; elsewhere it is only a directory and a group of
// processes.
package testmodal
