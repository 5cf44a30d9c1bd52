package local

// The kinds of messages to the collector process. The kind is the first byte; the session folder
// follows.
const (
	handleOpened = '+' // sent before the folder is made
	handleClosed = '-'
	sandboxGone  = 'x'
)

// collectorFor returns this program's collector, or nil for a sandbox that needs none.
func collectorFor(cfg Config) *orphanCollector {
	if cfg.ReapOrphans {
		return nil
	}
	return ownCollector
}
