package environment

import (
	"github.com/agentenv-dev/agentenv/environment/internal/acpregistry"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// RegistryAgents returns the names of the agents of the registry of the Agent Client Protocol, such
// as "acp:goose", sorted. This version of the module has a copy of the registry.
func RegistryAgents() []string { return acpregistry.Names() }

// registryRecipes returns the recipes of RegistryAgents. acp is the recipe of any agent of the
// protocol.
func registryRecipes(acp AgentInfo) []AgentInfo {
	var list []AgentInfo
	for _, name := range RegistryAgents() {
		if registered, ok := acpregistry.Find(name); ok {
			list = append(list, registered.Complete(acp))
		}
	}
	return list
}

// launch returns how an agent of the registry starts in a sandbox; nil for any other agent.
func launch(agentName string, p primitives.EnvironmentPrimitive) *runnerscripts.Launch {
	registered, ok := acpregistry.Find(agentName)
	if !ok {
		return nil
	}
	caps := p.Capabilities()
	return registered.Launch(caps.OS, caps.Arch)
}
