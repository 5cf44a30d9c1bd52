package environment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/agentenv-dev/agentenv/internal/closest"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/primitives"
)

// maxConfig is how large a configuration file may be: 4 MiB.
const maxConfig = 4 << 20

// LoadConfig reads a configuration from a YAML or JSON file. Relative paths of
// this machine in it are relative to the file's folder. A pipe or a device is
// primitives.ErrNotRegular: read it and call [ParseConfig]. More than 4 MiB are
// primitives.ErrLimit. Errors beside those of reading are [ErrConfig], as from
// [ParseConfig].
//
// There are short forms: "agent: claude", and in the workspace "folder: .", which leaves out
// what git ignores, "git: URL#REF" and "tar: FILE".
func LoadConfig(name string) (Config, error) {
	data, err := input.ReadFile(name, maxConfig)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Config{}, fmt.Errorf("configuration %s: %w", name, fs.ErrNotExist)
	case err != nil:
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	dir, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		return Config{}, err
	}
	cfg, err := parseConfig(data, dir)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", name, err)
	}
	cfg.resolve(dir)
	for i := range cfg.Workspace {
		cfg.Workspace[i].config = name
	}
	return cfg, nil
}

// ParseConfig decodes a configuration in YAML or JSON. It is strict: a key that
// does not exist or stands twice, a value of another type, and a second document
// are [ErrConfig], and the message says where. A profile that is a path is read by
// [LoadProfile]; a relative one is relative to the working directory.
func ParseConfig(data []byte) (Config, error) {
	return parseConfig(data, "")
}

// parseConfig decodes a configuration whose profile may be in a file or folder,
// by a path relative to dir.
func parseConfig(data []byte, dir string) (Config, error) {
	asJSON, err := configJSON(data)
	if err != nil {
		return Config{}, err
	}
	if asJSON, err = expandShort(asJSON); err != nil {
		return Config{}, err
	}
	asJSON, profile := cutProfile(asJSON)
	var cfg Config
	if err := decodeStrict(asJSON, &cfg, ""); err != nil {
		return Config{}, err
	}
	if profile != "" {
		if !filepath.IsAbs(profile) {
			profile = filepath.Join(dir, profile)
		}
		if cfg.Profile, err = LoadProfile(profile); err != nil {
			return Config{}, err
		}
	}
	if err := cfg.check(); err != nil {
		return Config{}, err
	}
	if cfg.Sandbox.Type != "" {
		if err := cfg.Sandbox.check(); err != nil {
			return Config{}, err
		}
	}
	return cfg, nil
}

// configJSON makes JSON of a YAML or JSON document.
func configJSON(data []byte) ([]byte, error) {
	switch {
	case len(data) > maxConfig:
		return nil, fmt.Errorf("%w: it is larger than %d MiB", ErrConfig, maxConfig>>20)
	case json.Valid(data):
		return data, duplicateKeys(data)
	case severalDocuments(data):
		return nil, fmt.Errorf("%w: there is more than one document in it; keep one", ErrConfig)
	}
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return asJSON, nil
}

// cutProfile takes a profile that is a path out of a configuration.
func cutProfile(data []byte) (rest []byte, path string) {
	var tree map[string]json.RawMessage
	if json.Unmarshal(data, &tree) != nil || json.Unmarshal(tree["profile"], &path) != nil || path == "" {
		return data, ""
	}
	delete(tree, "profile")
	rest, err := json.Marshal(tree)
	if err != nil {
		return data, ""
	}
	return rest, path
}

// expandShort writes short forms out: the name of an agent, and what a source is, as the
// flags of envctl have them.
func expandShort(data []byte) ([]byte, error) {
	var tree map[string]any
	if json.Unmarshal(data, &tree) != nil {
		return data, nil // which is refused later
	}
	if name, ok := tree["agent"].(string); ok {
		tree["agent"] = map[string]any{"name": name}
	}
	if text, ok := tree["workspace"].(string); ok {
		return nil, fmt.Errorf("%w: workspace: it is a list of sources, not a text; give one, as in 'workspace: [{folder: %[2]s}]', "+
			"or, for a folder of this machine that the agent itself works in, 'sandbox: {type: docker, workspace: %[2]s}'", ErrConfig, text)
	}
	sources, _ := tree["workspace"].([]any)
	for _, one := range sources {
		source, _ := one.(map[string]any)
		if path, ok := source["folder"].(string); ok {
			source["folder"] = map[string]any{"path": path, "gitignore": true}
		}
		if address, ok := source["git"].(string); ok {
			url, ref, _ := strings.Cut(address, "#")
			source["git"] = map[string]any{"url": url, "ref": ref}
		}
		if path, ok := source["tar"].(string); ok {
			source["tar"] = map[string]any{"path": path}
		}
	}
	return json.Marshal(tree)
}

// severalDocuments reports whether a YAML stream holds more than one document, all
// but the first of which its decoder would leave unread. The markers "---" and
// "..." can stand at the beginning of a line for nothing else.
func severalDocuments(data []byte) bool {
	begun, ended := false, false
	for line := range bytes.Lines(data) {
		word, _, _ := bytes.Cut(bytes.TrimRight(line, "\r\n\t "), []byte(" "))
		switch {
		case len(word) == 0 && len(bytes.TrimSpace(line)) == 0, line[0] == '#', !begun && line[0] == '%':
		case string(word) == "...":
			ended = begun
		case ended, begun && string(word) == "---":
			return true
		default:
			begun = true
		}
	}
	return false
}

// resolve makes relative paths of this machine absolute.
func (c *Config) resolve(dir string) {
	abs := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	abs(&c.Runner)
	if p, ok := c.Sandbox.block().(primitives.PathHolder); ok {
		for _, p := range p.HostPaths(&c.Sandbox.Spec) {
			abs(p)
		}
	}
	for _, s := range c.Workspace {
		switch {
		case s.Folder != nil:
			abs(&s.Folder.Path)
		case s.Tar != nil:
			abs(&s.Tar.Path)
		case s.Git != nil && (s.Git.URL == "." || s.Git.URL == ".." || strings.HasPrefix(s.Git.URL, "./") || strings.HasPrefix(s.Git.URL, "../")):
			abs(&s.Git.URL)
		}
	}
}

// decodeStrict decodes JSON and refuses keys that v does not have.
func decodeStrict(data []byte, v any, where string) error {
	var tree any
	if err := decodeNumbers(data, &tree); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := checkKeys(tree, reflect.TypeOf(v), where); err != nil {
		return err
	}
	data, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrConfig):
		return err
	case errors.As(err, &wrong):
		return fmt.Errorf("%w: %s: it is a %s and must be a %s", ErrConfig, join(where, wrong.Field), wrong.Value, wrong.Type)
	}
	return fmt.Errorf("%w: %s: %w", ErrConfig, where, err)
}

// meant advises about a key that is none of these fields.
func meant(key string, fields map[string]reflect.Type) string {
	names := slices.Sorted(maps.Keys(fields))
	advice := "there are: " + strings.Join(names, ", ")
	if name := closest.Name(key, names); name != "" {
		return "did you mean " + name + "? " + advice
	}
	if key == "permission" || key == "permissions" {
		key = "permission_mode"
	}
	if at := settingNamed(key, reflect.TypeFor[Config](), ""); at != "" {
		return "did you mean " + at + "? " + advice
	}
	return advice
}

// settingNamed returns where in a configuration a key of this name stands; empty if nowhere.
func settingNamed(key string, t reflect.Type, where string) string {
	if t.Kind() != reflect.Struct {
		return ""
	}
	fields := jsonFields(t)
	if _, ok := fields[key]; ok {
		return join(where, key)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if at := settingNamed(key, fields[name], join(where, name)); at != "" {
			return at
		}
	}
	return ""
}

// decodeNumbers decodes JSON without rounding its numbers.
func decodeNumbers(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return dec.Decode(v)
}

var durationType = reflect.TypeFor[time.Duration]()

// readDuration makes the number that encoding/json takes of a duration such as "2h".
func readDuration(value any, where string) (any, error) {
	text, ok := value.(string)
	if d, err := time.ParseDuration(text); ok && err == nil {
		return int64(d), nil
	}
	return nil, fmt.Errorf("%w: %s: %s is no duration; give one with a unit, such as 90s or 2h", ErrConfig, where, given(value))
}

// writeDurations is readDuration the other way round, for all durations below a value.
func writeDurations(value any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	settings, ok := value.(map[string]any)
	if !ok || t.Kind() != reflect.Struct {
		return
	}
	for name, field := range jsonFields(t) {
		number, is := settings[name].(json.Number)
		if n, err := number.Int64(); is && err == nil && field == durationType {
			settings[name] = time.Duration(n).String()
		}
		writeDurations(settings[name], field)
	}
}

// checkKeys walks a decoded value along the type that it is for, and makes numbers of
// durations.
func checkKeys(value any, t reflect.Type, where string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return checkValue(value, t, where)
	}
	if !fits(value, t.Kind()) {
		return fmt.Errorf("%w: %s: it is %s; give %s", ErrConfig, where, given(value), wanted(t.Kind()))
	}
	switch value := value.(type) {
	case map[string]any:
		if t.Kind() == reflect.Map {
			for key, v := range value {
				if err := checkKeys(v, t.Elem(), join(where, key)); err != nil {
					return err
				}
			}
			return nil
		}
		if t.Kind() != reflect.Struct {
			return nil
		}
		fields := jsonFields(t)
		for key, v := range value {
			field, ok := fields[key]
			if !ok {
				return fmt.Errorf("%w: unknown key %s; %s", ErrConfig, join(where, key), meant(key, fields))
			}
			if field == durationType && v != nil {
				number, err := readDuration(v, join(where, key))
				if err != nil {
					return err
				}
				value[key] = number
				continue
			}
			if err := checkKeys(v, field, join(where, key)); err != nil {
				return err
			}
		}
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		for i, v := range value {
			if err := checkKeys(v, t.Elem(), fmt.Sprintf("%s[%d]", where, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkValue has a type say itself whether it takes a value.
func checkValue(value any, t reflect.Type, where string) error {
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, reflect.New(t).Interface())
	}
	if err == nil || errors.Is(err, ErrConfig) {
		return err // it says where
	}
	return fmt.Errorf("%w: %s: %w", ErrConfig, where, err)
}

// fits reports whether a decoded value can be read into a type of this kind.
func fits(value any, k reflect.Kind) bool {
	switch value.(type) {
	case map[string]any:
		return k == reflect.Struct || k == reflect.Map || k == reflect.Interface
	case []any:
		return k == reflect.Slice || k == reflect.Interface
	case string:
		return k == reflect.String || k == reflect.Interface || k == reflect.Slice // bytes
	case bool:
		return k == reflect.Bool || k == reflect.Interface
	case json.Number:
		return k >= reflect.Int && k <= reflect.Float64 || k == reflect.Interface
	}
	return true // null is the zero value of anything
}

// wanted and given name values in the words of configuration files.
func wanted(k reflect.Kind) string {
	switch k {
	case reflect.Struct, reflect.Map:
		return "a mapping (key: value)"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	}
	return "a number"
}

func given(value any) string {
	switch v := value.(type) {
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		return "a text"
	default:
		return fmt.Sprint(v)
	}
}

// jsonFields returns the fields of a struct by their name in JSON.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "-" && name != "" {
			fields[name] = f.Type
		}
	}
	return fields
}

// duplicateKeys refuses what encoding/json would take the last one of.
func duplicateKeys(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	return duplicatesIn(dec, "")
}

func duplicatesIn(dec *json.Decoder, where string) error {
	token, err := dec.Token()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := make(map[string]bool)
	for i := 0; dec.More(); i++ {
		at := fmt.Sprintf("%s[%d]", where, i)
		if delim == '{' {
			key, err := dec.Token()
			if err != nil {
				return fmt.Errorf("%w: %w", ErrConfig, err)
			}
			name, _ := key.(string)
			if at = join(where, name); seen[name] {
				return fmt.Errorf("%w: the key %s stands twice; keep one", ErrConfig, at)
			}
			seen[name] = true
		}
		if err := duplicatesIn(dec, at); err != nil {
			return err
		}
	}
	_, err = dec.Token() // the closing one
	return err
}

func join(where, key string) string {
	if where == "" || key == "" {
		return where + key
	}
	return where + "." + key
}
