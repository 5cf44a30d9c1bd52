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
