package rdsserver

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// FuzzParseNode: whatever a client calls itself, what is accepted names a namespace, agrees with itself and is
// bounded, and what is refused is so with a sentence that is bounded too.
func FuzzParseNode(f *testing.F) {
	f.Add("sidecar~10.0.0.1~app.shop~shop.svc.cluster.local", "shop", "app")
	f.Add("router~10.0.0.1~gw.edge~edge.svc.cluster.local", "", "")
	f.Add("sidecar~~~.", "", "")
	f.Add("sidecar~1~a~local", "shop", "\x00")
	f.Add("ztunnel~1~a~shop.svc", "web", "~")
	f.Add("~~~", "~", "~~~")
	f.Fuzz(func(t *testing.T, id, namespace, account string) {
		fields := map[string]*structpb.Value{}
		if namespace != "" {
			fields["NAMESPACE"] = structpb.NewStringValue(namespace)
		}
		if account != "" {
			fields["SERVICE_ACCOUNT"] = structpb.NewStringValue(account)
		}
		in := &corev3.Node{Id: id, Metadata: &structpb.Struct{Fields: fields}}
		n, err := parseNode(in)
		if err != nil {
			if n != (node{}) {
				t.Errorf("refused with %v, but returned %+v", err, n)
			}
			// Each byte may take four in quotes; the longest text quotes the namespace twice.
			if len(err.Error()) > 8*maxWord+200 {
				t.Errorf("refused with %d bytes of text", len(err.Error()))
			}
			return
		}
		again, err := parseNode(in)
		if err != nil || again != n {
			t.Errorf("parsed again it is %+v, %v, not %+v", again, err, n)
		}
		parts := strings.Split(id, "~")
		if n.id != id || n.serviceAccount != account || len(parts) != 4 || n.gateway != (parts[0] == "router") {
			t.Errorf("%q of account %q became %+v", id, account, n)
		}
		if n.namespace == "" || namespace != "" && n.namespace != namespace {
			t.Errorf("the namespace is %q, the metadata's is %q", n.namespace, namespace)
		}
		if named, _, dotted := strings.Cut(parts[3], "."); dotted && named != "" && named != n.namespace {
			t.Errorf("the namespace is %q, the id says %q", n.namespace, named)
		}
		if max(len(n.id), len(n.namespace), len(n.serviceAccount)) > maxWord {
			t.Errorf("%d, %d and %d bytes are kept", len(n.id), len(n.namespace), len(n.serviceAccount))
		}
	})
}
