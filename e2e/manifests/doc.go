// Package manifests tests what a cluster applies, without a cluster: the MetaRouter CRD as the API server
// would judge objects by it, against metards' own judgement, and every kustomization of /manifests. It has
// only tests, in a module of its own because of what they import.
package manifests
