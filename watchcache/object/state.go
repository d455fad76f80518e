package object

import "strings"

// State tells one version of one object from all others.
type State struct {
	Key             string // see Resource.Key
	UID             string
	ResourceVersion uint64
}

// ParseState reads the protobuf message of an object, or of its metadata alone, for its version.
func (r *Resource) ParseState(message []byte) (State, error) {
	meta, err := metadataOf(message)
	if err != nil {
		return State{}, err
	}
	var o Object
	namespace, name, err := o.readProtoMetadata(meta.bytes)
	return State{r.Key(namespace, strings.Clone(name)), strings.Clone(o.uid), o.rv}, err
}

// ParseVersion reads no more of an object in protobuf than its resourceVersion.
func ParseVersion(message []byte) (rv uint64, err error) {
	meta, err := metadataOf(message)
	if err != nil {
		return 0, err
	}
	var o Object
	_, _, err = o.readProtoMetadata(meta.bytes)
	return o.rv, err
}
