package local

// The kinds of a message to the collector process. The session folder follows.
const (
	handleOpened = '+' // comes before the folder is made
	handleClosed = '-'
	sandboxGone  = 'x'
)

// collectorFor returns nil for a sandbox that needs no collector process.
func collectorFor(cfg Config) *orphanCollector {
	if cfg.ReapOrphans {
		return nil
	}
	return ownCollector
}
