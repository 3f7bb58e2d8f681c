package envoy_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/tlsboot"
)

const gatePatience = 30 * time.Second

var gateAddress = regexp.MustCompile(`msg=serving .*listen=(\S+)`)

// gateServer is metards serve with an Envoy as its gate, on a directory.
type gateServer struct {
	t    *testing.T
	dir  string
	ca   *tlsboot.DevCA
	addr string
	log  chan string // lines; the tests read what they wait for
}

func gateServe(t *testing.T, part string) *gateServer {
	t.Helper()
	s := &gateServer{t: t, dir: t.TempDir(), log: make(chan string, 1000)}
	s.edit(part)
	var err error
	if s.ca, err = tlsboot.NewDevCA("cluster.local"); err != nil {
		t.Fatal(err)
	}
	pair, err := s.ca.Issue(tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "metards", DNSNames: []string{"localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	certs := t.TempDir()
	if err := s.ca.WriteFiles(certs, "server", pair); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Getenv("METARDS"), "serve", "--dir", s.dir, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--cert", filepath.Join(certs, "server.pem"), "--key", filepath.Join(certs, "server-key.pem"), "--root", filepath.Join(certs, "root.pem"),
		"--grace-period", "50ms", "--validate-with-envoy", filepath.Join(os.Getenv("E2E_BIN"), "envoy"))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go s.read(stderr, read)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("metards ended with: %v", err)
		}
	})
	s.addr = gateAddress.FindStringSubmatch(s.line("msg=serving"))[1]
	return s
}

func (s *gateServer) read(r io.Reader, done chan<- struct{}) {
	defer close(done)
	for scan := bufio.NewScanner(r); scan.Scan(); {
		select {
		case s.log <- scan.Text():
		default: // nobody waits for so many
		}
	}
}

// line waits for a line of the log.
func (s *gateServer) line(part string) string {
	s.t.Helper()
	for timeout := time.After(gatePatience); ; {
		select {
		case line := <-s.log:
			if strings.Contains(line, part) {
				return line
			}
		case <-timeout:
			s.t.Fatalf("no line of the log says %q", part)
		}
	}
}

func (s *gateServer) edit(part string) {
	s.t.Helper()
	file := filepath.Join(s.dir, "orders.yaml")
	if err := os.WriteFile(file+".new", []byte(gateObjects(s.t, "orders", part)), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		s.t.Fatal(err)
	}
}

func (s *gateServer) proxy(ctx context.Context, form sampleproxy.Form) *sampleproxy.Stream {
	s.t.Helper()
	pair, err := s.ca.Issue(tlsboot.IssueOptions{Namespace: "web", ServiceAccount: "app"})
	if err != nil {
		s.t.Fatal(err)
	}
	config, err := s.ca.ClientConfig(pair, "localhost")
	if err != nil {
		s.t.Fatal(err)
	}
	cc, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cc.Close() })
	stream, err := sampleproxy.Open(ctx, cc, form, sampleproxy.Node("sidecar", "app", "web"))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := stream.Want("orders.shop.example_20880"); err != nil {
		s.t.Fatal(err)
	}
	return stream
}

func TestAnEditThatEnvoyRefusesIsNotServedAndTheNextGoodOneIs(t *testing.T) {
	for _, form := range []sampleproxy.Form{sampleproxy.Forms()[0], sampleproxy.Forms()[3]} {
		t.Run(form.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), gatePatience)
			defer cancel()
			s := gateServe(t, `{"name":"v1"}`)
			proxy := s.proxy(ctx, form)
			next := func(want string) {
				t.Helper()
				r, err := proxy.Next(ctx)
				if err != nil {
					t.Fatal(err)
				}
				table, err := r.Table()
				if err != nil {
					t.Fatal(err)
				}
				if got := table.GetVirtualHosts()[0].GetRoutes()[0].GetName(); got != want {
					t.Errorf("the table is %s, want %s", got, want)
				}
				if err := proxy.Accept(r); err != nil {
					t.Fatal(err)
				}
			}
			next("v1")
			s.edit(`{"name":"v2","requestMutation":[{"key":"discount","value":"50%"}]}`)
			if line := s.line("reason=RefusedByEnvoy"); !strings.Contains(line, "Couldn't find valid command") || !strings.Contains(line, "MetaRouter shop/orders") {
				t.Errorf("the log says %s", line)
			}
			began := time.Now()
			s.edit(`{"name":"v3"}`)
			next("v3")
			t.Logf("from the file to the proxy, by way of Envoy: %s", time.Since(began).Round(time.Millisecond))
		})
	}
}
