package modal

// RunnerImage returns the name of the image that holds a runner.
func RunnerImage(file string) (string, error) {
	r, err := readRunner(file)
	if err != nil {
		return "", err
	}
	return r.name, nil
}
