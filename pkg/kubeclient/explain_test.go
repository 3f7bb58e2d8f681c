package kubeclient_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/metards/metards/pkg/kubeclient"
)

var access = kubeclient.Access{Verb: "list", Resource: "metarouters.metaprotocol.aeraki.io"}

func TestEachErrorIsASentenceThatSaysWhatToDo(t *testing.T) {
	group := schema.GroupResource{Group: "metaprotocol.aeraki.io", Resource: "metarouters"}
	for name, c := range map[string]struct {
		err   error
		class kubeclient.Class
		want  string
	}{
		"forbidden":    {apierrors.NewForbidden(group, "", errors.New("User \"me\" cannot")), kubeclient.Forbidden, `does not let us list metarouters.metaprotocol.aeraki.io: give our service account this verb`},
		"unauthorized": {apierrors.NewUnauthorized("no"), kubeclient.Unauthorized, "renew the token or client certificate"},
		"not found":    {apierrors.NewNotFound(group, ""), kubeclient.NotFound, "check that the kubeconfig names an API server"},
		"broken":       {apierrors.NewInternalError(errors.New("etcd is down")), kubeclient.Other, "refuses to list metarouters.metaprotocol.aeraki.io: Internal error occurred: etcd is down"},
		"late":         {fmt.Errorf("client: %w", context.DeadlineExceeded), kubeclient.Unreachable, "cannot be reached: no answer in time"},
		"nonsense":     {errors.New("unexpected object"), kubeclient.Other, "cannot list metarouters.metaprotocol.aeraki.io at the API server H: unexpected object"},
		"long":         {apierrors.NewInternalError(errors.New(strings.Repeat("x", 5000))), kubeclient.Other, "…"},
	} {
		f := kubeclient.Explain(c.err, "H", access)
		if f.Class != c.class || !strings.Contains(f.Text, c.want) || len(f.Text) > 1000 {
			t.Errorf("%s: %s: %s", name, f.Class, f.Text)
		}
	}
}

func TestErrorsOfTheNetworkHaveNoPartThatDiffersEachTime(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for host, c := range map[string]struct {
		class kubeclient.Class
		want  string
	}{
		secure.URL:               {kubeclient.Untrusted, "is not trusted (x509: certificate signed by unknown authority): correct the certificate authority"},
		"https" + plain.URL[4:]:  {kubeclient.Unreachable, "server gave HTTP response to HTTPS client"},
		gone.URL:                 {kubeclient.Unreachable, "cannot be reached: connect: connection refused"},
		"http://nowhere.invalid": {kubeclient.Unreachable, `no such host "nowhere.invalid`},
	} {
		client, err := rest.UnversionedRESTClientFor(&rest.Config{Host: host, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()}})
		if err != nil {
			t.Fatal(err)
		}
		f := kubeclient.Explain(client.Get().AbsPath("/apis").Do(t.Context()).Error(), host, access)
		if f.Class != c.class || !strings.Contains(f.Text, c.want) {
			t.Errorf("%s: %s: %s", host, f.Class, f.Text)
		}
	}
}

func TestClientGoLogsAtLevelDebug(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	klog.FromContext(kubeclient.Quiet(t.Context(), log)).WithName("x").Error(errors.New("bad"), "it failed")
	if text.Len() != 0 {
		t.Errorf("logged: %s", text.String())
	}
	log = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	klog.FromContext(kubeclient.Quiet(t.Context(), log)).WithValues("a", 1).Error(errors.New("bad"), "it failed")
	if !strings.Contains(text.String(), `level=DEBUG msg="it failed" a=1 err=bad`) {
		t.Errorf("logged: %s", text.String())
	}
}
