package docker

// BypassFrom sets the size from which on files go through the engine's archives.
func BypassFrom(cfg *Config, size int64) { cfg.bypassFrom = size }
