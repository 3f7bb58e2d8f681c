package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/metards/metards/e2e/process"
)

func (c *Cluster) namespaces(ctx context.Context) error {
	return c.Namespaces(ctx, "istio-system")
}

// Namespaces makes namespaces.
func (c *Cluster) Namespaces(ctx context.Context, names ...string) error {
	for _, n := range names {
		_, err := c.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// installIstioCRDs applies the CRDs of the Istio module that istiod was built from.
func (c *Cluster) installIstioCRDs(ctx context.Context) error {
	file := os.Getenv("E2E_ISTIO_CRDS")
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("E2E_ISTIO_CRDS: %w", err)
	}
	if err := c.Apply(ctx, string(data)); err != nil {
		return err
	}
	return until(ctx, func() error {
		d, err := c.discovery()
		if err != nil {
			return err
		}
		_, err = d.ServerResourcesForGroupVersion("networking.istio.io/v1")
		return err
	})
}

func until(ctx context.Context, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, process.Patience)
	defer cancel()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Apply applies the objects of a YAML text, server-side.
func (c *Cluster) Apply(ctx context.Context, text string) error {
	return c.each(ctx, text, func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		_, err := r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "e2e", Force: true})
		return err
	})
}

// Delete deletes the objects of a YAML text.
func (c *Cluster) Delete(ctx context.Context, text string) error {
	return c.each(ctx, text, func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		err := r.Delete(ctx, o.GetName(), metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// each calls f for each object of a YAML text, with the resource that it is to be found under.
func (c *Cluster) each(ctx context.Context, text string, f func(dynamic.ResourceInterface, *unstructured.Unstructured) error) error {
	dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := dec.Decode(o)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(o.Object) == 0:
			continue
		}
		r, err := c.resource(ctx, o)
		if err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if err := f(r, o); err != nil {
			return fmt.Errorf("%s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
		}
	}
}

// resource finds an object's resource; a CRD that was just applied may take a moment.
func (c *Cluster) resource(ctx context.Context, o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	var out dynamic.ResourceInterface
	gvk := o.GroupVersionKind()
	err := until(ctx, func() error {
		d, err := c.discovery()
		if err != nil {
			return err
		}
		groups, err := restmapper.GetAPIGroupResources(d)
		if err != nil {
			return err
		}
		m, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return err
		}
		out = c.Dynamic.Resource(m.Resource)
		if m.Scope.Name() == "namespace" {
			out = c.Dynamic.Resource(m.Resource).Namespace(o.GetNamespace())
		}
		return nil
	})
	return out, err
}

// Token makes a service account, if need be, and a token of it.
func (c *Cluster) Token(ctx context.Context, namespace, account, audience string, lifetime time.Duration) (string, error) {
	accounts := c.Kube.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	seconds := int64(lifetime.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds}}
	token, err := accounts.CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return token.Status.Token, nil
}
