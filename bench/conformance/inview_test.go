package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// messages are the types of messages.
var messages = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	utilruntime.Must(metav1.AddMetaToScheme(s))
	return s
}()

// message is an object that JSON and protobuf can have.
type message interface {
	runtime.Object
	Marshal() ([]byte, error)
	Unmarshal(text []byte) error
}

func newMessage(gvk schema.GroupVersionKind) (message, error) {
	o, err := messages.New(gvk)
	if err != nil {
		return nil, err
	}
	return o.(message), nil
}

// fromJSON returns an object as its message would be shown: without what protobuf does not have, such
// as the kinds of a list's items.
func fromJSON(body string) (string, error) {
	of := gjson.GetMany(body, "apiVersion", "kind")
	gvk := schema.FromAPIVersionAndKind(of[0].Str, of[1].Str)
	o, err := newMessage(gvk)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(body), o); err != nil {
		return "", err
	}
	raw, err := o.Marshal()
	if err != nil {
		return "", err
	}
	return fromRaw(gvk, raw)
}

// fromMessage shows a message in JSON.
func fromMessage(body []byte) (string, error) {
	envelope, err := OpenEnvelope(body)
	if err != nil {
		return "", err
	}
	return fromRaw(schema.FromAPIVersionAndKind(envelope.APIVersion, envelope.Kind), envelope.Raw)
}

func fromRaw(gvk schema.GroupVersionKind, raw []byte) (string, error) {
	o, err := newMessage(gvk)
	if err != nil {
		return "", err
	}
	if err := o.Unmarshal(raw); err != nil {
		return "", err
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	shown, err := json.Marshal(o)
	return string(shown), err
}

// compared returns a response without the view, cut, and the view's response in the same form. from is
// the source of the view's response.
func (v *view) compared(r row, want, got reply, from source) (w, g reply, err error) {
	for _, r := range []*reply{&want, &got} {
		if r.Body, err = plainBody(*r); err != nil {
			return want, got, err
		}
		// A cut response may be too short for compression, and what upstream sends is not compressed again.
		r.Header = r.Header.Clone()
		r.Header.Del("Content-Encoding")
		r.Header.Del("Vary")
	}
	binary := strings.HasPrefix(got.Header.Get("Content-Type"), protobuf)
	if r.watches() && want.Status == http.StatusOK && got.Status == http.StatusOK {
		ofWant, err := eventsIn(want)
		ofGot, gotErr := eventsIn(got)
		if err = errors.Join(err, gotErr); err == nil {
			ofWant, ofGot, err = v.events(ofWant, ofGot, from)
		}
		want.Body, got.Body = joined(ofWant), joined(ofGot)
		got.Header["Content-Type"] = want.Header["Content-Type"]
		return want, got, err
	}
	whole, shown := string(want.Body), string(got.Body)
	cut := whole
	if want.Status == http.StatusOK {
		cut = v.body(whole) + whole[len(strings.TrimSuffix(whole, "\n")):]
	}
	switch {
	case binary:
		got.Header["Content-Type"] = want.Header["Content-Type"]
		if err = leaked(got.Body, cut); err == nil {
			cut, err = fromJSON(cut)
		}
		if err == nil {
			shown, err = fromMessage(got.Body)
		}
	case from == cache && got.Status == http.StatusOK && strings.Contains(r.Header.Get("Accept"), protobuf) && v.hasMessages(whole):
		err = errors.New("the cache answered in JSON")
	case strings.HasPrefix(whole, "{\n"): // indented
		cut, shown = compact(cut), compact(shown)
	}
	want.Body, got.Body = []byte(cut), []byte(shown)
	return want, got, err
}

func compact(indented string) string {
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(indented)); err != nil {
		return indented
	}
	return b.String()
}

// hasMessages reports whether the view cuts messages of the kind of a body. A path may lead into a
// value that protobuf has in another form, or to the kind of a template, which protobuf does not have.
func (v *view) hasMessages(body string) bool {
	of := gjson.GetMany(body, "apiVersion", "kind")
	return messages.Recognizes(schema.FromAPIVersionAndKind(of[0].Str, of[1].Str)) && !strings.Contains(of[0].Str, "alpha") &&
		(v.version == "" || v.version == of[0].Str) && !slices.ContainsFunc(v.paths, func(p path) bool {
		i := slices.IndexFunc(p, func(key string) bool { return slices.Contains([]string{"fieldsV1", "data", "parameters"}, key) })
		return i >= 0 && i < len(p)-1 || len(p) > 1 && slices.Contains([]string{"kind", "apiVersion"}, p[len(p)-1])
	})
}

// eventsIn returns the events in the body of a finite watch.
func eventsIn(r reply) (all []Event, err error) {
	for e, err := range Events(&http.Response{Header: r.Header, Body: io.NopCloser(bytes.NewReader(r.Body))}) {
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
	return all, nil
}

// joined returns the events as a body, without bookmarks that may come at any time.
func joined(events []Event) (body []byte) {
	for _, e := range events {
		if e.Type != "BOOKMARK" || e.InitialEnd {
			body = append(body, Settled(e)...)
		}
	}
	return body
}

// events returns the events that the view must show, given those without the view, and the events
// that it shows, in the same form. From the cache, a change is missing if it changes nothing of what
// the view shows.
func (v *view) events(want, got []Event, from source) (due, shown []Event, err error) {
	binary, was := len(got) > 0 && got[0].Line[0] != '{', map[string]string{}
	var all []byte
	for _, e := range want {
		object := gjson.GetBytes(e.Line, "object").Raw
		if e.Type != "BOOKMARK" {
			object = v.body(object)
		}
		all = append(all, object...)
		if binary {
			if object, err = fromJSON(object); err != nil {
				return due, shown, err
			}
		}
		is := strings.Replace(object, fmt.Sprintf(`"resourceVersion":"%d"`, e.RV), "", 1)
		before, known := was[e.Key]
		was[e.Key] = is
		if e.Type == "MODIFIED" && known && from == cache && before == is && !strings.HasPrefix(object, `{"kind":"Table"`) {
			continue
		}
		due = append(due, e.showing(object))
	}
	for _, e := range got {
		if binary {
			if err = leaked(e.Line, string(all)); err != nil {
				return due, shown, err
			}
			var event metav1.WatchEvent
			if err = event.Unmarshal(e.Line[4:]); err != nil {
				return due, shown, err
			}
			object, err := fromMessage(event.Object.Raw)
			if err != nil {
				return due, shown, err
			}
			e = e.showing(object)
		}
		shown = append(shown, e)
	}
	return due, shown, nil
}

// showing returns the event with another object.
func (e Event) showing(object string) Event {
	e.Line = fmt.Appendf(nil, "{\"type\":%q,\"object\":%s}\n", e.Type, object)
	return e
}

// sentinels are texts that only some fields have.
var sentinels = regexp.MustCompile(`sentinel-[a-z-]+`)

// leaked returns an error if a message has a sentinel that the cut JSON does not have. The tag after a
// sentinel may be a letter.
func leaked(message []byte, cut string) error {
	for _, s := range sentinels.FindAllString(string(message), -1) {
		if !strings.Contains(cut, s) && !strings.Contains(cut, s[:len(s)-1]+`"`) && !strings.Contains(cut, s[:len(s)-2]+`"`) {
			return fmt.Errorf("the answer has %s", s)
		}
	}
	return nil
}
