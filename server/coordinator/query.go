package coordinator

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// checkQuery refuses unknown keys.
func (rt Route) checkQuery(r *http.Request) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return failf(http.StatusBadRequest, "the query: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		switch {
		case slices.Contains(rt.Query, key), slices.Contains(rt.ignored, key):
		case len(rt.Query) == 0:
			return failf(http.StatusBadRequest, "the query: %s: there is no such key; leave it out", key)
		default:
			return failf(http.StatusBadRequest, "the query: %s: there is no such key; there are: %s", key, strings.Join(rt.Query, ", "))
		}
	}
	return nil
}
