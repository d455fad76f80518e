package object

import "strings"

// State identifies a version of an object.
type State struct {
	Key             string // see Resource.Key
	UID             string
	ResourceVersion uint64
}

// State returns the State of an object. It keeps none of the object's bytes alive.
func (o *Object) State() State { return State{strings.Clone(o.key), strings.Clone(o.uid), o.rv} }

// ParseState reads the State from the protobuf message of an object or of its metadata.
func (r *Resource) ParseState(message []byte) (State, error) {
	m, err := readProtoMetadata(message)
	return State{r.Key(m.namespace, strings.Clone(m.name)), strings.Clone(m.uid), m.rv}, err
}

// ParseVersion reads only the resourceVersion of an object in protobuf.
func ParseVersion(message []byte) (rv uint64, err error) {
	m, err := readProtoMetadata(message)
	return m.rv, err
}
