package coordinator

// Events returns how many events of a session are in the log, and SetEvents changes what the coordinator knows of that.
func (c *Coordinator) Events(session string) int { return c.sessions[session].Events }

func (c *Coordinator) SetEvents(session string, n int) { c.sessions[session].Events = n }

// WaitChange and WaitWork return the channels for which streams and polls wait.
func (c *Coordinator) WaitChange() <-chan struct{} { return c.waitChange() }

func (c *Coordinator) WaitWork() <-chan struct{} { return c.waitWork() }
