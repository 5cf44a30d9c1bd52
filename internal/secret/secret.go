// Package secret says which values can be redacted.
package secret

// Shortest is the least length in bytes of a value that is redacted. A shorter value is too often
// part of other words, and a key that short protects nothing: servers of local models take any.
const Shortest = 8
