package server

import (
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentenv-dev/agentenv/internal/sessionapi"
)

// The types below are the part of OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1) that the description uses.

type openAPI struct {
	OpenAPI  string                          `json:"openapi"`
	Info     apiInfo                         `json:"info"`
	Paths    map[string]map[string]operation `json:"paths"`
	Parts    apiParts                        `json:"components"`
	Security []map[string][]string           `json:"security"`
}

type apiInfo struct {
	Title       string `json:"title"`
	Version     string `json:"version"`
	Description string `json:"description"`
}

type apiParts struct {
	Schemas  map[string]*jsonschema.Schema `json:"schemas"`
	Security map[string]apiScheme          `json:"securitySchemes"`
}

type apiScheme struct {
	Type   string `json:"type"`
	Scheme string `json:"scheme"`
}

type operation struct {
	Summary    string                 `json:"summary"`
	ID         string                 `json:"operationId"`
	Parameters []parameter            `json:"parameters,omitempty"`
	Body       *content               `json:"requestBody,omitempty"`
	Responses  map[string]apiResponse `json:"responses"`
}

type parameter struct {
	Name     string             `json:"name"`
	In       string             `json:"in"`
	Required bool               `json:"required,omitempty"`
	Schema   *jsonschema.Schema `json:"schema"`
}

type content struct {
	Required bool             `json:"required,omitempty"`
	Content  map[string]media `json:"content"`
}

type apiResponse struct {
	Description string           `json:"description"`
	Content     map[string]media `json:"content,omitempty"`
}

type media struct {
	Schema *jsonschema.Schema `json:"schema,omitempty"`
}

// describe returns the description of the interface, from the schemas that check it.
func describe(routes []route) openAPI {
	api := openAPI{
		OpenAPI: "3.1.1",
		Info: apiInfo{
			Title: "agentenv", Version: strings.TrimPrefix(sessionapi.Prefix, "/"),
			Description: "Sessions with coding agents in sandboxes. A change may have the header " + sessionapi.KeyHeader +
				": it is made once, however often it is sent.",
		},
		Paths: make(map[string]map[string]operation),
		Parts: apiParts{
			Schemas:  map[string]*jsonschema.Schema{"Error": errorSchema()},
			Security: map[string]apiScheme{"token": {"http", "bearer"}},
		},
		Security: []map[string][]string{{"token": {}}},
	}
	for _, r := range routes {
		if api.Paths[r.path] == nil {
			api.Paths[r.path] = make(map[string]operation)
		}
		api.Paths[r.path][strings.ToLower(r.method)] = r.describe()
	}
	return api
}

// describe returns the description of one operation.
func (r route) describe() operation {
	op := operation{
		Summary: r.summary, ID: strings.ToLower(r.method) + parameters.ReplaceAllString(strings.ReplaceAll(r.path, "/", "_"), "$1"),
		Responses: map[string]apiResponse{
			"default": {"An error", map[string]media{"application/json": {&jsonschema.Schema{Ref: "#/components/schemas/Error"}}}},
		},
	}
	text := &jsonschema.Schema{Type: "string"}
	for _, name := range parameters.FindAllStringSubmatch(r.path, -1) {
		op.Parameters = append(op.Parameters, parameter{name[1], "path", true, text})
	}
	for _, name := range r.query {
		op.Parameters = append(op.Parameters, parameter{name, "query", name == "path", text})
	}
	if r.media == eventStream {
		op.Parameters = append(op.Parameters, parameter{sessionapi.LastEventID, "header", false, text})
	}
	switch r.method {
	case "GET":
	case "PUT":
		op.Body = &content{true, map[string]media{"application/octet-stream": {}}}
	default:
		op.Parameters = append(op.Parameters, parameter{sessionapi.KeyHeader, "header", false, text})
	}
	if r.body != nil {
		op.Body = &content{true, map[string]media{"application/json": {r.body}}}
	}
	switch {
	case r.reply != nil:
		op.Responses["200"] = apiResponse{"The answer", map[string]media{"application/json": {r.reply}}}
	case r.media != "":
		op.Responses["200"] = apiResponse{"The content", map[string]media{r.media: {}}}
	default:
		op.Responses["204"] = apiResponse{Description: "Done"}
	}
	return op
}

// errorSchema describes errors, with all codes.
func errorSchema() *jsonschema.Schema {
	var names []any
	for _, c := range sessionapi.Codes() {
		names = append(names, c.Name)
	}
	return &jsonschema.Schema{
		Type: "object", Required: []string{"error"},
		Properties: map[string]*jsonschema.Schema{"error": {
			Type: "object", Required: []string{"code", "message"},
			Properties: map[string]*jsonschema.Schema{
				"code":    {Type: "string", Enum: names},
				"message": {Type: "string", Description: "what failed, why, and how to mend it"},
			},
		}},
	}
}
