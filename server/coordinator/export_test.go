package coordinator

// Events returns how many events of a session are in the log, and SetEvents changes what the coordinator knows of that.
func (c *Coordinator) Events(session string) int { return c.sessions[session].Events }

func (c *Coordinator) SetEvents(session string, n int) { c.sessions[session].Events = n }
