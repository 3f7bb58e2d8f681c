// Package filewatch reads the Kubernetes objects in a directory of YAML and JSON files and follows their changes.
// In: a directory, with sub-directories and symbolic links. Out: every object that counts, in one complete
// batch whenever one of them differs, and the Problems of the files; a file that is half written, broken,
// unreadable or just being replaced is never taken for a deletion.
// Not here: what an object says (pkg/mesh decodes it and pkg/routes judges it), and which source wins.
package filewatch
