package kubewatch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/metards/metards/pkg/kubeclient"
)

// crdState is whether the CRD of MetaRouters is there.
type crdState int

const (
	crdUnknown crdState = iota
	crdThere
	crdGoing // it is being deleted, and its objects before it
	crdMissing
)

// crd is what the API server says about the CRD of MetaRouters.
type crd struct {
	state crdState
	uid   string // empty if not known
}

// differs reports whether this is known to be another CRD than that of a UID.
func (c crd) differs(uid string) bool { return c.uid != "" && uid != "" && c.uid != uid }

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// inspector finds out about the CRD.
type inspector struct {
	crds dynamic.NamespaceableResourceInterface
	raw  rest.Interface
}

// look asks for the CRD itself, which is never outdated. Where that is forbidden it reads the list of
// resources that everybody may read; that one takes a moment to follow, and knows no UID.
func (i *inspector) look(ctx context.Context) (crd, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeclient.RequestTimeout)
	defer cancel()
	object, err := i.crds.Get(ctx, kubeclient.MetaRouterCRD, metav1.GetOptions{})
	switch {
	case err == nil && object.GetDeletionTimestamp() != nil:
		return crd{state: crdGoing, uid: string(object.GetUID())}, nil
	case err == nil:
		return crd{state: crdThere, uid: string(object.GetUID())}, nil
	case isAbout(err, kubeclient.MetaRouterCRD):
		return crd{state: crdMissing}, nil
	case apierrors.IsForbidden(err):
		c, discoveryErr := i.discover(ctx)
		if discoveryErr != nil {
			return crd{}, err // that right is the one to ask for
		}
		return c, nil
	}
	return crd{}, err
}

// isAbout reports whether an API server says that it has no object of a name. Something else, such as a
// proxy or a server of another kind, says only that it knows no such path.
func isAbout(err error, name string) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && apierrors.IsNotFound(err) && status.Status().Details != nil && status.Status().Details.Name == name
}

// discover reads the resources that the API server offers. One whose CRD is going cannot be created.
func (i *inspector) discover(ctx context.Context) (crd, error) {
	var groups metav1.APIGroupList
	if err := i.get(ctx, "/apis", &groups); err != nil {
		return crd{}, err
	}
	known := func(name string) bool {
		return slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == name })
	}
	if !known(crdResource.Group) {
		return crd{}, fmt.Errorf("the server offers no %s", crdResource.Group)
	}
	if !known(kubeclient.MetaRouters.Group) {
		return crd{state: crdMissing}, nil
	}
	var resources metav1.APIResourceList
	err := i.get(ctx, "/apis/"+kubeclient.MetaRouters.GroupVersion().String(), &resources)
	if err != nil && !apierrors.IsNotFound(err) {
		return crd{}, err
	}
	for _, r := range resources.APIResources {
		if r.Name == kubeclient.MetaRouters.Resource {
			if slices.Contains(r.Verbs, "create") {
				return crd{state: crdThere}, nil
			}
			return crd{state: crdGoing}, nil
		}
	}
	return crd{state: crdMissing}, nil
}

func (i *inspector) get(ctx context.Context, path string, into any) error {
	data, err := i.raw.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
