// Package store contains the states that a feed can begin from. It saves caches and their logs in a
// directory, with one file each. It also records the resourceVersions that clients resume from.
package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Store is a directory of saved caches. With saved caches, a restart costs upstream one probe, one
// watch and one metadata list per feed, and a few requests for its version. It costs clients
// nothing: upstream sends no state again, and the clients' resourceVersions stay valid.
//
// A restored cache serves clients once two conditions hold. First, the cache has reached the
// revision of a probe that was sent when the proxy started. Normally, the feed's stream brings the
// cache there. If the resource has not changed, a second, short watch brings the cache there.
// Second, the metadata of all objects equals upstream's metadata. This check is needed because etcd
// may have been restored from a backup. Upstream may then accept a resourceVersion of the lost
// history.
//
// A file is refused in these cases:
//
//   - The file comes from another cluster.
//   - The file comes from another version of the apiserver, which may write other bytes.
//   - The resource's definition has changed.
//   - The file is newer than upstream.
//
// A file consists of a line with its format, a line with a header in JSON, a dump
// ([watchcache.Cache.Dump]), and the SHA-256 of all these parts. The file is written under a
// temporary name and then renamed. Only the file's owner can read it.
type Store struct {
	dir     string
	lock    *os.File // locks the directory, so that only one process writes to it
	cluster string
	log     *zap.Logger
}

// Writer is what wrote the bytes of a cache's objects. Another writer may write other bytes for the
// same objects.
type Writer struct {
	Server     string `json:"server"`               // version of the apiserver
	Definition string `json:"definition,omitempty"` // version of a custom resource's definition
}

// Key identifies a feed and the file of its cache.
type Key struct {
	GVR      schema.GroupVersionResource `json:"resource"`
	Encoding object.Encoding             `json:"encoding"`
	Scope    object.Scope                `json:"scope,omitzero"`
}

// Sorted returns the parts of a key in sort order: group, version, resource, encoding, scope.
func (k Key) Sorted() []string {
	return []string{k.GVR.Group, k.GVR.Version, k.GVR.Resource, k.Encoding.String(), k.Scope.String()}
}

// String names the feed.
func (k Key) String() string {
	name := fmt.Sprintf("%s feed of %s", k.Encoding, k.GVR)
	if !k.Scope.Whole() {
		name += " in " + k.Scope.String()
	}
	return name
}

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (k Key) MarshalLogObject(line zapcore.ObjectEncoder) error {
	line.AddString("group", k.GVR.Group)
	line.AddString("version", k.GVR.Version)
	line.AddString("resource", k.GVR.Resource)
	line.AddString("encoding", k.Encoding.String())
	if !k.Scope.Whole() {
		line.AddString("scope", k.Scope.String())
	}
	return nil
}

// Clone returns a key that shares no memory with k.
func (k Key) Clone() Key {
	for _, s := range []*string{&k.GVR.Group, &k.GVR.Version, &k.GVR.Resource, &k.Scope.Namespace, &k.Scope.Fields, &k.Scope.Labels} {
		*s = strings.Clone(*s)
	}
	return k
}

// header describes a file. A file is used only if all its header fields match, except Saved.
type header struct {
	Cluster string `json:"cluster"`
	Writer
	Key
	Kind       string    `json:"kind"`
	ListKind   string    `json:"listKind"`
	Namespaced bool      `json:"namespaced"`
	Saved      time.Time `json:"saved"`
}

const (
	magic      = "watchproxy cache, format 2\n"
	suffix     = ".cache"
	askTimeout = 30 * time.Second // limits the request for the cluster's identifier
)

// ErrUseless means that a saved cache cannot be used. Errors that wrap it contain the reason.
var ErrUseless = errors.New("saved cache is of no use")

// Open creates the directory if it is missing, locks it, and reads the cluster's identifier. If the
// proxy may not read it, upstream's address takes its place.
func Open(ctx context.Context, dir string, client *client.Client, log *zap.Logger) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of saved caches: %w", err)
	}
	s := &Store{dir: dir, log: log}
	if err := s.take(); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, client); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// take locks the directory until Close or the end of the process.
func (s *Store) take() (err error) {
	if s.lock, err = os.Open(s.dir); err != nil {
		return fmt.Errorf("directory of saved caches: %w", err)
	}
	if info, err := s.lock.Stat(); err != nil || info.Mode().Perm()&othersWrite != 0 {
		return errors.Join(fmt.Errorf("directory of saved caches: others can write to it (%v): what is in it is believed", info.Mode()), err, s.lock.Close())
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("directory of saved caches: is it another watchproxy's? %w", err), s.lock.Close())
	}
	return nil
}

const othersWrite = 0o022

// Close unlocks the directory for other processes.
func (s *Store) Close() error { return s.lock.Close() }

func (s *Store) prepare(ctx context.Context, client *client.Client) error {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && strings.Contains(e.Name(), suffix+"-") { // left by a killed process
			err = errors.Join(err, os.Remove(filepath.Join(s.dir, e.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("directory of saved caches: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if s.cluster, err = client.Cluster(ctx); err != nil {
		return fmt.Errorf("who is upstream: %w", err)
	}
	if s.cluster == "" {
		s.cluster = client.Base.String()
	}
	return nil
}

// header returns the header for a feed's cache.
func (s *Store) header(cache *watchcache.Cache, w Writer) header {
	r := cache.Resource()
	return header{
		Cluster: s.cluster, Writer: w, Key: Key{r.GVR, r.Encoding, r.Scope},
		Kind: r.Kind, ListKind: r.ListKind, Namespaced: r.Namespaced,
	}
}

// path is the path of a feed's file. A scope may contain characters that file names may not.
func (s *Store) path(key Key) string {
	parts := key.Sorted()
	if key.Scope.Whole() {
		parts = parts[:len(parts)-1]
	}
	name := strings.Join(parts, "_")
	if len(name) > nameMax || !key.Scope.Whole() {
		name = fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
	}
	return filepath.Join(s.dir, name+suffix)
}

// nameMax leaves space for a prefix and a suffix, because file systems limit names to 255 bytes.
const nameMax = 200

// Save writes a feed's cache.
func (s *Store) Save(cache *watchcache.Cache, w Writer) (err error) {
	h := s.header(cache, w)
	h.Saved = time.Now()
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	path := s.path(h.Key)
	file, err := os.CreateTemp(s.dir, "."+filepath.Base(path)+"-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	sum := sha256.New()
	to := io.MultiWriter(file, sum)
	if _, err = fmt.Fprintf(to, "%s%s\n", magic, head); err != nil {
		return err
	}
	if err = cache.Dump(to); err != nil {
		return err
	}
	if _, err = file.Write(sum.Sum(nil)); err != nil {
		return err
	}
	if err = file.Sync(); err != nil {
		return err
	}
	if err = os.Rename(file.Name(), path); err != nil {
		return err
	}
	_ = file.Close() // the file is already synced
	return s.sync()
}

// sync ensures that the directory's entries survive a crash of the machine.
func (s *Store) sync() error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // it was only read from
	return dir.Sync()
}

// Remove deletes a feed's file, if there is one.
func (s *Store) Remove(key Key) error {
	if err := os.Remove(s.path(key)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Load fills an empty cache from its file, unless the file is newer than upstream. Possible errors
// are fs.ErrNotExist, [ErrUseless], and errors from reading the file.
func (s *Store) Load(cache *watchcache.Cache, w Writer, upstreamAt uint64) error {
	want := s.header(cache, w)
	file, err := os.Open(s.path(want.Key))
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read from
	if err := checkSum(file); err != nil {
		return err
	}
	from := bufio.NewReaderSize(file, 1<<20)
	saved, err := readHeader(from)
	if err != nil {
		return err
	}
	want.Saved = saved.Saved
	if saved != want {
		return fmt.Errorf("%w: it is of %+v, wanted is %+v", ErrUseless, saved, want)
	}
	rv, publish, err := cache.Restore(from)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUseless, err)
	}
	if rest, err := io.ReadAll(io.LimitReader(from, sha256.Size+1)); err != nil || len(rest) != sha256.Size {
		return fmt.Errorf("%w: %d bytes follow the dump, %w", ErrUseless, len(rest), err)
	}
	if rv > upstreamAt {
		return fmt.Errorf("%w: it is at %d, upstream at %d", ErrUseless, rv, upstreamAt)
	}
	publish()
	return nil
}

// checkSum verifies a file's checksum and rewinds the file.
func checkSum(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	sum, content := sha256.New(), info.Size()-sha256.Size
	if content < 0 {
		return fmt.Errorf("%w: it is cut", ErrUseless)
	}
	if _, err := io.CopyN(sum, file, content); err != nil {
		return err
	}
	said, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(said, sum.Sum(nil)) {
		return fmt.Errorf("%w: its checksum differs", ErrUseless)
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

func readHeader(from *bufio.Reader) (h header, err error) {
	first := make([]byte, len(magic))
	if _, err := io.ReadFull(from, first); err != nil || string(first) != magic {
		return h, fmt.Errorf("%w: it begins with %q, %w", ErrUseless, first, err)
	}
	head, err := from.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(head, &h)
	}
	if err != nil {
		return h, fmt.Errorf("%w: header: %w", ErrUseless, err)
	}
	return h, nil
}

// Saved lists the feeds with files. It removes invalid files, because no other code would.
func (s *Store) Saved() (keys []Key, err error) {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		switch key, headErr := s.keyOf(path); {
		case headErr == nil:
			keys = append(keys, key)
		case errors.Is(headErr, ErrUseless):
			s.log.Warn("saved cache is removed", zap.String("file", path), zap.Error(headErr))
			err = errors.Join(err, os.Remove(path))
		default:
			s.log.Warn("saved cache cannot be read", zap.String("file", path), zap.Error(headErr))
		}
	}
	return keys, err
}

func (s *Store) keyOf(path string) (key Key, err error) {
	file, err := os.Open(path)
	if err != nil {
		return key, err
	}
	defer file.Close() //nolint:errcheck // it was only read from
	h, err := readHeader(bufio.NewReader(file))
	if err != nil {
		return key, err
	}
	if s.path(h.Key) != path {
		return key, fmt.Errorf("%w: it is the file of %v", ErrUseless, h.GVR)
	}
	return h.Key, nil
}
