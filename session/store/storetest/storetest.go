// Package storetest is the contract suite of package store: a store that passes
// [Run] keeps what sessions rely on. It is for those who write a store.
package storetest

import (
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// Open makes an empty store for one test, and cleans up with t.Cleanup.
//
// Reopen, if it is not nil, returns another handle on the same data, as a program
// would get it that starts after the first one has crashed: without anything of
// the first handle being flushed or closed. A store that survives its program
// must return one; only a store in memory returns nil.
type Open func(t *testing.T) (s store.Store, reopen func() store.Store)

// Run checks a store against the contract of store.Store, one subtest for each
// rule.
func Run(t *testing.T, open Open) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, reopen := open(t)
			c.check(t, s)
			if reopen == nil || c.again == nil {
				return
			}
			t.Run("after a crash", func(t *testing.T) { c.again(t, reopen()) })
		})
	}
}

// rule is one rule of the contract.
type rule struct {
	name  string
	check func(t *testing.T, s store.Store)
	// again looks at what check left, after a crash.
	again func(t *testing.T, s store.Store)
}

var cases = []rule{
	{"Create/a session can be loaded as it was created", createLoad, loadCreated},
	{"Create/an id is used once", createTwice, nil},
	{"Create/an empty id is refused", createEmpty, nil},
	{"Load/the caller owns the record", loadOwned, nil},
	{"List/the most recently updated session comes first", list, nil},
	{"List/leaving the loop early is fine", listLeave, nil},
	{"Delete/everything of the session is gone", deleteAll, goneAll},
	{"Delete/an id can be used again and starts empty", deleteReuse, nil},
	{"NotFound/every method says so", notFound, nil},
	{"Append/events come back byte by byte", appendExact, readExact},
	{"Append/numbers continue without a gap", appendGapless, readFirstThree},
	{"Append/nothing of a refused batch is stored", appendAtomic, readFirstThree},
	{"Append/nothing is appended when there are no events", appendNothing, nil},
	{"Append/the store keeps no reference to the payload", appendOwned, nil},
	{"Append/a single writer wins each number", appendRace, nil},
	{"Append/the record tells the last event", appendRecord, nil},
	{"Events/they start where asked", eventsFrom, nil},
	{"Events/beyond the end there are none", eventsBeyond, nil},
	{"Events/a slow loop does not block Append", eventsSlow, nil},
	{"Events/leaving the loop early is fine", eventsLeave, nil},
	{"Events/large payloads come back whole", eventsLarge, nil},
	{"Put/a part comes back byte by byte", putExact, getExact},
	{"Put/a newer revision is never overwritten by an older one", putStale, getNewest},
	{"Put/an equal revision replaces", putEqual, nil},
	{"Put/a failing reader changes nothing", putBroken, getOld},
	{"Put/parts are apart from each other", putParts, nil},
	{"Get/a part that was never put does not exist", getMissing, nil},
	{"Get/a reader sees one revision to its end", getSnapshot, nil},
	{"Context/a cancelled call changes nothing", cancelled, nil},
	{"Error/it tells operation and session", errorShape, nil},
}
