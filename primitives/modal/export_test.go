package modal

import "time"

// RunnerImage returns the name of the image that holds a runner.
func RunnerImage(file string) (string, error) {
	r, err := readRunner(file)
	if err != nil {
		return "", err
	}
	return r.name, nil
}

// WithKeepAlive is cfg with a guest that is asked more often whether it lives.
func WithKeepAlive(cfg Config, every time.Duration) Config {
	cfg.keepAlive = every
	return cfg
}

// WithPublishTimeout is cfg whose sandbox waits no longer for the published runner.
func WithPublishTimeout(cfg Config, timeout time.Duration) Config {
	cfg.publishTimeout = timeout
	return cfg
}

// Forget makes all that is known of Modal older than it is believed.
func Forget() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for _, k := range shared.known {
		k.mu.Lock()
		for key, f := range k.ids {
			f.at = f.at.Add(-trust)
			k.ids[key] = f
		}
		k.mu.Unlock()
	}
}
