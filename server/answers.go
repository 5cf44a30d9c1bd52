package server

import (
	"slices"

	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
)

// answersOf returns the stored answers that hold for the sessions of a caller; all for an admin.
func answersOf(caller Caller) ([]answers.Answer, error) {
	list, err := answers.List()
	return slices.DeleteFunc(list, func(a answers.Answer) bool {
		return caller.Role != RoleAdmin && a.User != caller.Name
	}), err
}

func (s *Server) storedAnswers(c *call, _ none) (sessionapi.Permissions, error) {
	list, err := answersOf(callerOf(c.Context()))
	for i := range list {
		list[i].Key = ""
	}
	return sessionapi.Permissions{Permissions: append([]answers.Answer{}, list...)}, err
}

func (s *Server) removeAnswer(c *call, _ none) (none, error) {
	id := c.PathValue("id")
	list, err := answersOf(callerOf(c.Context()))
	if err == nil && !slices.ContainsFunc(list, func(a answers.Answer) bool { return a.ID == id }) {
		err = answers.UnknownError(id)
	}
	if err != nil {
		return none{}, err
	}
	return none{}, answers.Remove(id)
}
