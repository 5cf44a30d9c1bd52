package guest

// SetRunChild sets the function that runs when the test program is started as a child.
func SetRunChild(f func() bool) bool {
	runChild = f
	return true
}
