package main

import (
	"maps"
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// printRecipe prints the recipe of an agent.
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

// printRecipes prints the recipes of all agents, sorted by name.
func (a *app) printRecipes() int {
	all := make([]runnerscripts.Recipe, 0, len(a.agents))
	for _, name := range slices.Sorted(maps.Keys(a.agents)) {
		all = append(all, a.agents[name].Recipe())
	}
	if err := a.finish(all); err != nil {
		return a.fail(err)
	}
	return exitOK
}
