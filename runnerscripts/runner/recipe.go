package main

// printRecipe prints what an agent needs in a sandbox.
func (a *app) printRecipe(name string) int {
	d, err := a.driver(name)
	if err == nil {
		err = a.finish(d.Recipe())
	}
	if err != nil {
		return a.fail(err)
	}
	return exitOK
}
