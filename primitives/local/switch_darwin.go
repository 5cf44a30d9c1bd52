package local

import "os"

// maySwitchUser reports whether commands can run as another user.
func maySwitchUser() bool { return os.Geteuid() == 0 }
