package sqlite

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// diskName is the name of the VFS that records what SQLite does to its files. It passes everything
// on to the usual VFS.
const diskName = "recorded-disk"

// operation is one operation on a file, or a mark of the test.
type operation struct {
	file   string // its base name; empty for a mark
	kind   operationKind
	offset int64
	data   []byte
	mark   any
}

type operationKind int

const (
	written operationKind = iota
	truncated
	synced
	deleted // for good: only Open deletes files, and syncs their folder
	marked
)

// recordedDisk is the disk of the one store that is recorded.
type recordedDisk struct {
	mu    sync.Mutex
	log   []operation
	files map[uintptr]string // by the address of SQLite's file
	probe func() any         // returns a mark that precedes each operation; may be nil

	methods map[uintptr]uintptr // the tables of methods that record, by those that do not
	usual   map[uintptr]*sqlite3.Tsqlite3_io_methods
	open    uintptr
	delete  uintptr
}

var (
	disk         recordedDisk
	registerDisk sync.Once
)

// record returns the disk, empty.
func record(t *testing.T) *recordedDisk {
	t.Helper()
	registerDisk.Do(func() {
		tls := libc.NewTLS()
		name, err := libc.CString(diskName)
		if err != nil {
			t.Fatal(err)
		}
		own := libc.Xcalloc(tls, 1, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_vfs{})))
		vfs := at[sqlite3.Tsqlite3_vfs](own)
		*vfs = *at[sqlite3.Tsqlite3_vfs](sqlite3.Xsqlite3_vfs_find(tls, 0))
		disk.open, disk.delete = vfs.FxOpen, vfs.FxDelete
		disk.methods, disk.usual = make(map[uintptr]uintptr), make(map[uintptr]*sqlite3.Tsqlite3_io_methods)
		vfs.FzName = name
		setFunc(&vfs.FxOpen, recordOpen)
		setFunc(&vfs.FxDelete, recordDelete)
		if rc := sqlite3.Xsqlite3_vfs_register(tls, own, 0); rc != sqlite3.SQLITE_OK {
			t.Fatalf("register: %d", rc)
		}
	})
	disk.mu.Lock()
	defer disk.mu.Unlock()
	disk.log, disk.files, disk.probe = nil, make(map[uintptr]string), nil
	return &disk
}

// at returns C memory as a Go value.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

// setFunc stores a Go function where C has a pointer to one, and asFunc is the reverse.
func setFunc[F any](field *uintptr, f F) { *(*F)(unsafe.Pointer(field)) = f }

func asFunc[F any](field uintptr) F { return *(*F)(unsafe.Pointer(&field)) }

type (
	openFunc     = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, out uintptr) int32
	writeFunc    = func(tls *libc.TLS, file, data uintptr, n int32, offset int64) int32
	truncateFunc = func(tls *libc.TLS, file uintptr, size int64) int32
	deleteFunc   = func(tls *libc.TLS, vfs, name uintptr, syncFolder int32) int32
	syncFunc     = func(tls *libc.TLS, file uintptr, flags int32) int32
)

func recordOpen(tls *libc.TLS, vfs, name, file uintptr, flags int32, out uintptr) int32 {
	rc := asFunc[openFunc](disk.open)(tls, vfs, name, file, flags, out)
	methods := &at[sqlite3.Tsqlite3_file](file).FpMethods
	if rc != sqlite3.SQLITE_OK || *methods == 0 || name == 0 {
		return rc
	}
	disk.mu.Lock()
	defer disk.mu.Unlock()
	disk.files[file] = filepath.Base(libc.GoString(name))
	own := disk.methods[*methods]
	if own == 0 {
		own = libc.Xcalloc(tls, 1, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_io_methods{})))
		usual := at[sqlite3.Tsqlite3_io_methods](*methods)
		table := at[sqlite3.Tsqlite3_io_methods](own)
		*table = *usual
		setFunc[writeFunc](&table.FxWrite, recordWrite)
		setFunc[truncateFunc](&table.FxTruncate, recordTruncate)
		setFunc[syncFunc](&table.FxSync, recordSync)
		disk.methods[*methods], disk.usual[own] = own, usual
	}
	*methods = own
	return rc
}

func recordWrite(tls *libc.TLS, file, data uintptr, n int32, offset int64) int32 {
	bytes := bytes.Clone(unsafe.Slice(at[byte](data), n))
	usual := disk.add(file, operation{kind: written, offset: offset, data: bytes})
	return asFunc[writeFunc](usual.FxWrite)(tls, file, data, n, offset)
}

func recordTruncate(tls *libc.TLS, file uintptr, size int64) int32 {
	return asFunc[truncateFunc](disk.add(file, operation{kind: truncated, offset: size}).FxTruncate)(tls, file, size)
}

func recordSync(tls *libc.TLS, file uintptr, flags int32) int32 {
	usual := disk.methodsOf(file)
	rc := asFunc[syncFunc](usual.FxSync)(tls, file, flags)
	disk.add(file, operation{kind: synced})
	return rc
}

func recordDelete(tls *libc.TLS, vfs, name uintptr, syncFolder int32) int32 {
	disk.mu.Lock()
	disk.log = append(disk.log, operation{kind: deleted, file: filepath.Base(libc.GoString(name))})
	disk.mu.Unlock()
	return asFunc[deleteFunc](disk.delete)(tls, vfs, name, syncFolder)
}

func (d *recordedDisk) methodsOf(file uintptr) *sqlite3.Tsqlite3_io_methods {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usual[at[sqlite3.Tsqlite3_file](file).FpMethods]
}

// add records an operation and returns the usual methods of its file.
func (d *recordedDisk) add(file uintptr, op operation) *sqlite3.Tsqlite3_io_methods {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.probe != nil {
		d.log = append(d.log, operation{kind: marked, mark: d.probe()})
	}
	op.file = d.files[file]
	d.log = append(d.log, op)
	return d.usual[at[sqlite3.Tsqlite3_file](file).FpMethods]
}

// mark records something of the test.
func (d *recordedDisk) mark(what any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, operation{kind: marked, mark: what})
}

// afterCut writes the files to dir as a power cut after the first n operations may leave them: all
// that was synced, and of the later writes each 4 KiB with the probability survives.
func (d *recordedDisk) afterCut(t *testing.T, dir string, n int, random *rand.Rand, survives float64) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	lastSync := make(map[string]int)
	for i, op := range d.log[:n] {
		if op.kind == synced {
			lastSync[op.file] = i
		}
	}
	files := make(map[string][]byte)
	for i, op := range d.log[:n] {
		safe := i < lastSync[op.file]
		switch op.kind {
		case deleted:
			delete(files, op.file)
		case truncated:
			if data := files[op.file]; op.offset < int64(len(data)) && (safe || random.Float64() < survives) {
				files[op.file] = data[:op.offset]
			}
		case written:
			const page = 4096
			for from := int64(0); from < int64(len(op.data)); {
				to := min(from+page-(op.offset+from)%page, int64(len(op.data)))
				if safe || random.Float64() < survives {
					files[op.file] = writeAt(files[op.file], op.data[from:to], op.offset+from)
				}
				from = to
			}
		}
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func writeAt(file, data []byte, offset int64) []byte {
	if end := offset + int64(len(data)); int64(len(file)) < end {
		file = append(file, make([]byte, end-int64(len(file)))...)
	}
	copy(file[offset:], data)
	return file
}
