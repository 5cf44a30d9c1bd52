package hold

// gemini filters the answers of the Gemini API. A call is whole in each part.
type gemini struct{ judge Judge }

func (g gemini) event(name string, data object) ([]event, error) {
	g.whole(data)
	return []event{{name, data}}, nil
}

func (g gemini) whole(answer object) {
	for _, one := range children(answer, "candidates") {
		candidate, _ := one.(object)
		parts := children(child(candidate, "content"), "parts")
		for i, p := range parts {
			part, _ := p.(object)
			call := child(part, "functionCall")
			if call == nil {
				continue
			}
			if refusal := g.judge(text(call, "name"), encoded(call["args"])); refusal != "" {
				parts[i] = object{"text": refusal}
			}
		}
	}
}
