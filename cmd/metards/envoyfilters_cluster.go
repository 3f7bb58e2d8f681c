package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/metards/metards/pkg/envoyfilter"
	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/problem"
)

// pageSize is how many objects are asked for at a time.
const pageSize = 500

// serviceEntries are the versions of the resource, of which the first that is served is read.
var serviceEntries = []schema.GroupVersionResource{
	{Group: "networking.istio.io", Version: "v1", Resource: "serviceentries"},
	{Group: "networking.istio.io", Version: "v1beta1", Resource: "serviceentries"},
}

var kubernetesServices = []schema.GroupVersionResource{{Version: "v1", Resource: "services"}}

// readCluster reads the services of the API server, each kind once.
func (o *envoyFilterFlags) readCluster(ctx context.Context) ([]envoyfilter.Service, []problem.Problem, error) {
	config, err := kubeclient.Config(o.kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("no directory is given, so services are read from the API server: %w", err)
	}
	config.Timeout = kubeclient.RequestTimeout
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client of the API server %s: %w", config.Host, err)
	}
	r := clusterReader{client: client, domain: o.clusterDomain}
	namespaces := o.from
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, versions := range [][]schema.GroupVersionResource{serviceEntries, kubernetesServices} {
		for _, namespace := range namespaces {
			if err := r.list(kubeclient.Quiet(ctx, slog.New(slog.DiscardHandler)), versions, namespace); err != nil {
				access := kubeclient.Access{Verb: "list", Resource: versions[0].GroupResource().String()}
				return nil, nil, errors.New(kubeclient.Explain(err, config.Host, access).Text)
			}
		}
	}
	return r.services, r.problems, nil
}

// clusterReader collects the services of an API server.
type clusterReader struct {
	client   dynamic.Interface
	domain   string
	services []envoyfilter.Service
	problems []problem.Problem
}

// list reads the objects of a resource in the first of its versions that is served.
func (r *clusterReader) list(ctx context.Context, versions []schema.GroupVersionResource, namespace string) (err error) {
	for _, v := range versions {
		if err = r.pages(ctx, r.client.Resource(v).Namespace(namespace)); !apierrors.IsNotFound(err) {
			return err
		}
	}
	return err
}

func (r *clusterReader) pages(ctx context.Context, from dynamic.ResourceInterface) error {
	services, problems := len(r.services), len(r.problems)
	for o := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := from.List(ctx, o)
		if apierrors.IsResourceExpired(err) && o.Continue != "" { // the pages took too long: all at once then
			r.services, r.problems, o = r.services[:services], r.problems[:problems], metav1.ListOptions{}
			continue
		}
		if err != nil {
			return err
		}
		for i := range page.Items {
			r.take(&page.Items[i])
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

func (r *clusterReader) take(u *unstructured.Unstructured) {
	s, err := envoyfilter.Decode(u.Object, r.domain)
	if err != nil {
		r.problems = append(r.problems, undecodable(u.Object, err, "", 0))
		return
	}
	r.services = append(r.services, *s)
}
