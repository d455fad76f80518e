// Package views checks views: requests to /views/NAME, which are answered with objects that are cut
// to some of their fields. Its tests run the real proxy in front of a real kube-apiserver that has
// objects of every resource. The proxy has 50 views of each resource, with fields that -seed draws
// from the objects.
//
// A plain implementation on decoded values, cut, cuts the answers to the same requests without a
// view. The views' answers must have the same values, in the same order:
//
//   - lists, pages, gets, metadata and Tables, compressed and indented, from the cache and from
//     upstream. Lists and pages in protobuf are decoded, and compared with what the cut JSON decodes to;
//   - watches, event by event. An event that changes none of a view's fields must be missing if the
//     cache answers.
//
// No byte of a view's answer may show a sentinel that the cut answer does not have. Objects have
// sentinels in their annotations, labels and managed fields, and custom resources everywhere.
package views
