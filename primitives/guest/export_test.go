package guest

// SetRunChild sets what a run of the test program as a child does.
func SetRunChild(f func() bool) bool {
	runChild = f
	return true
}
