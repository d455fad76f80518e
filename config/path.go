package config

import (
	"errors"
	"fmt"
	"regexp"
)

// This file parses the paths of fields in Kubernetes objects, such as spec.nodeName,
// metadata.labels["app.kubernetes.io/name"] or status.conditions[*].type.
//
// A path begins with a name. Further steps are .NAME, ["KEY"], ['KEY'] or [*]. A name contains
// neither dots, brackets, quotes nor spaces. A key contains any text except its own quote. [*]
// selects all items of a list; there is no way to select a single item.

// PathStep leads from a value to a member or to the items of the value.
type PathStep struct {
	// Key is the key of a member of an object. It is empty if Items is set.
	Key string
	// Items selects all items of a list, written [*].
	Items bool
}

// Path leads from an object to a field. It has at least one step, and the first names a member.
type Path []PathStep

const (
	// stepSpecial are the characters that no name contains: dots, brackets, quotes and spaces.
	stepSpecial = `.\[\]"'\s\v\x{85}\p{Z}`
	stepChar    = `[^` + stepSpecial + `]`
)

var (
	firstStep = regexp.MustCompile(`^[^*${` + stepSpecial + `]`)
	nextStep  = regexp.MustCompile(`^(?:\.(` + stepChar + `+)|\["([^"]*)"\]|\['([^']*)'\]|\[\*\])`)
)

// ParsePath reads a path. An error has the position of the first wrong step, in bytes from 1.
func ParsePath(text string) (p Path, err error) {
	if !firstStep.MatchString(text) {
		return nil, errors.New("position 1: must begin with the name of a field, " +
			"as spec.nodeName does")
	}
	for rest := "." + text; rest != ""; {
		step := nextStep.FindStringSubmatch(rest)
		if step == nil || step[1] == "*" {
			return nil, fmt.Errorf("position %d: must be a step: .NAME, [\"KEY\"] for other "+
				"characters than those of a name, or [*] for all items of a list",
				len(text)-len(rest)+1)
		}
		p = append(p, PathStep{Key: step[1] + step[2] + step[3], Items: step[0] == "[*]"})
		rest = rest[len(step[0]):]
	}
	return p, nil
}
