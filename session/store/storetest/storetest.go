// Package storetest is the contract suite of package store: a store that passes [Run] satisfies
// the assumptions of package session. It is for authors of stores.
package storetest

import (
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// Open returns an empty store for one test, and cleans up with t.Cleanup.
//
// If Reopen is not nil, it returns another handle on the same data, like that of a program that
// starts after the first one has crashed: nothing of the first handle is flushed or closed. A
// store that survives its program must return one; only a store in memory returns nil.
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
	// again checks the state that check left, after a crash.
	again func(t *testing.T, s store.Store)
}

var cases = []rule{
	{"Create/a session can be loaded as it was created", createLoad, loadCreated},
	{"Create/an id is used once", createTwice, nil},
	{"Create/an empty id is refused", createEmpty, nil},
	{"Load/the caller owns the record", loadOwned, nil},
	{"Update/all but what is the store's own changes", updateAll, updatedAll},
	{"Update/none is lost", updateRace, nil},
	{"List/the most recently updated session comes first", list, nil},
	{"List/a clock that goes back changes nothing", listClock, listedClock},
	{"List/filters choose", listFilter, nil},
	{"List/records are whole but for the state", listRecords, nil},
	{"List/leaving the loop early is fine", listLeave, nil},
	{"Delete/everything of the session is gone", deleteAll, goneAll},
	{"Delete/an id can be used again and starts empty", deleteReuse, nil},
	{"NotFound/every method says so", notFound, nil},
	{"Append/events come back byte by byte", appendExact, readExact},
	{"Append/numbers continue without a gap", appendGapless, readFirstFour},
	{"Append/nothing of a refused batch is stored", appendAtomic, readFirstFour},
	{"Append/nothing is appended when there are no events", appendNothing, nil},
	{"Append/the store keeps no reference to the payload", appendOwned, nil},
	{"Append/a single writer wins each number", appendRace, nil},
	{"Append/the record tells the last event", appendRecord, nil},
	{"Events/they start where asked", eventsFrom, nil},
	{"Events/beyond the end there are none", eventsBeyond, nil},
	{"Events/a slow loop does not block Append", eventsSlow, nil},
	{"Events/leaving the loop early is fine", eventsLeave, nil},
	{"Events/large payloads come back whole", eventsLarge, nil},
	{"PutBlobs/a blob comes back byte by byte", putExact, getExact},
	{"PutBlobs/there may be none", putNothing, nil},
	{"PutBlobs/a failing reader leaves no half", putBroken, noHalves},
	{"PutBlobs/a reader that is cut off has failed", putTruncated, noHalves},
	{"PutBlobs/there may be thousands and equal ones", putMany, getMany},
	{"PutBlobs/other sessions do not wait for the reader", putWaiting, nil},
	{"PutBlobs/what sessions share stays while one has it", putShared, getExact},
	{"PutBlobs/sessions that share are apart from each other", putRace, nil},
	{"Blob/one that was never put does not exist", blobMissing, nil},
	{"Blob/a reader works when the blob is removed", removeOpen, nil},
	{"RemoveBlobs/these are gone and no others", removeBlobs, removedBlobs},
	{"Fork/it has the record, the log up to a point and the blobs", fork, forked},
	{"Fork/it lacks the blobs that came after its events", forkBlobs, forkedBlobs},
	{"Fork/the sessions are apart from then on", forkApart, forkedAlone},
	{"Fork/the log may be empty", forkNothing, nil},
	{"Fork/one that is refused leaves nothing", forkRefused, nil},
	{"Lock/one at a time drives a session", lockOnce, nil},
	{"Lock/it does not outlive the session", lockDeleted, nil},
	{"Context/a cancelled call changes nothing", cancelled, nil},
	{"Error/it tells operation and session", errorShape, nil},
}
