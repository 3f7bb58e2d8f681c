// Package kubewatch reads MetaRouters from the Kubernetes API server and follows their changes. In: the API
// server's lists, watches and word about the CRD. Out: every MetaRouter, decoded one by one, and deletions once
// they are believed: a CRD that goes takes all its objects with it, and that is not what users of routes mean.
// Not here: what a MetaRouter says (pkg/mesh decodes it and pkg/routes judges it), and its status (pkg/kubestatus).
package kubewatch
