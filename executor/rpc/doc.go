// Package rpc is the JSON-RPC 2.0 between a host and its executors, in both directions. The host asks
// an executor to ping, execute_prompt and shutdown. An executor asks the host for a key just in time
// (get_api_key) and for permission (request_permission), and reports what happens (report_message).
// docs/executors.md has the methods with their fields.
//
// An executor of this machine connects to a Unix socket that only its user can open; [Pool] starts
// such executors, each as another user of the system if wanted. An executor in a sandbox uses the
// HTTP endpoint of its gateway: [Service.ServeHTTP]. Every request of an executor carries the token of
// its session, and a token is all that an executor has: keys stay with the host until one is asked
// for that the session was granted.
//
// conn.go is the connection, message.go its messages and errors; token.go has the tokens of sessions,
// service.go the host's methods, http.go the endpoint, pool.go the processes.
package rpc
