// Package kubeclient is what everything that talks to the Kubernetes API server has in common. In: a kubeconfig
// or the cluster around us, and the errors of client-go. Out: a client configuration that does not hang on dead
// connections, and for each error one sentence that says what to do.
// Not here: what is read (pkg/kubewatch) or written (pkg/kubestatus).
package kubeclient

import "k8s.io/apimachinery/pkg/runtime/schema"

// MetaRouters is the resource that is read, and whose status is written.
var MetaRouters = schema.GroupVersionResource{Group: "metaprotocol.aeraki.io", Version: "v1alpha1", Resource: "metarouters"}

// MetaRouterCRD is the name of the CustomResourceDefinition of MetaRouters.
const MetaRouterCRD = "metarouters.metaprotocol.aeraki.io"
