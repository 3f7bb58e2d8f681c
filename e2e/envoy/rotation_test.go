package envoy

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/metards/metards/pkg/tlsboot"
)

// TestCertificatesRotateUnderTraffic replaces metards' certificate, then Envoy's, then the root, while requests
// flow. The stream stays open until the last step, in which a new one must be possible with the new root alone.
func TestCertificatesRotateUnderTraffic(t *testing.T) {
	s := begin(t, options{rules: ordersRouter + to("all", "v1", ""), clusters: []string{cluster("v2")}})
	report.Soon(t, "before: event log", "request sent ack", s.steps(ordersTable), s)
	load := s.load(ordersTable)

	server := s.serverPair(s.ca)
	s.must(s.server.Put(server, s.ca))
	report.Soon(t, "metards' files replaced: serial in a new handshake", serial(server), func() (string, error) { return s.serverSerial(s.ca) }, s)
	s.same("metards' files replaced", "v2")

	own := s.clientPair(s.ca)
	s.must(s.own.Put(own, s.ca))
	report.Soon(t, "Envoy's files replaced: serial on its page /certs", serial(own), s.envoySerial, s)
	s.same("Envoy's files replaced", "v1")

	next, err := tlsboot.NewDevCA("cluster.local")
	s.must(err)
	server, own = s.serverPair(next), s.clientPair(next)
	s.must(s.server.Put(s.serverPair(s.ca), s.ca, next))
	s.must(s.own.Put(s.clientPair(s.ca), s.ca, next))
	report.Soon(t, "both roots trusted by Envoy: roots on its page /certs", "2", s.envoyRoots, s)
	s.must(s.server.Put(server, s.ca, next))
	report.Soon(t, "metards' certificate of the new root: serial in a new handshake", serial(server), func() (string, error) { return s.serverSerial(next) }, s)
	s.must(s.own.Put(own, s.ca, next))
	report.Soon(t, "Envoy's certificate of the new root: serial on its page /certs", serial(own), s.envoySerial, s)
	s.must(s.server.Put(server, next))
	s.must(s.own.Put(own, next))
	report.Soon(t, "the new root alone: roots on Envoy's page /certs", "1", s.envoyRoots, s)
	report.Soon(t, "the new root alone: a client of the old one at metards", "refused", s.oldClient, s)
	s.same("the new root alone", "v2")

	s.metards.Stop()
	s.must(s.metards.Start())
	report.Soon(t, "metards restarted, a new stream with the new root: event log", "request sent ack", s.steps(ordersTable), s)
	s.edit(ordersRouter + to("all", "v1", ""))
	report.Soon(t, "the next edit", "v1", s.who(ordersTable, nil), s)
	s.undisturbed(load, "v1")
}

// same checks that the stream is the one of the beginning, and that an edit to a subset arrives on it.
func (s *scene) same(what, subset string) {
	s.t.Helper()
	s.edit(ordersRouter + to("all", subset, ""))
	report.Soon(s.t, "  an edit arrives", subset, s.who(ordersTable, nil), s)
	streams := map[uint64]bool{}
	for _, e := range s.events(ordersTable) {
		streams[e.Stream] = true
	}
	report.Is(s.t, "  "+what+": streams so far", 1, len(streams))
}

func serial(p *tlsboot.Pair) string { return fmt.Sprintf("%x", p.TLS.Leaf.SerialNumber.Bytes()) }

// serverSerial is the serial number that metards presents to a new client.
func (s *scene) serverSerial(ca *tlsboot.DevCA) (string, error) {
	conf, err := ca.ClientConfig(s.clientPair(s.ca), "localhost")
	if err != nil {
		return "", err
	}
	conn, err := tls.Dial("tcp", s.metards.Listen, conf)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return fmt.Sprintf("%x", conn.ConnectionState().PeerCertificates[0].SerialNumber.Bytes()), nil
}

// oldClient says what metards does with a certificate of the first root. It reads, as a server of TLS 1.3 refuses
// after the client's handshake.
func (s *scene) oldClient() (string, error) {
	conf := &tls.Config{
		Certificates: []tls.Certificate{s.clientPair(s.ca).TLS}, NextProtos: []string{"h2"},
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, //nolint:gosec // it is about what the server thinks of us
	}
	conn, err := tls.Dial("tcp", s.metards.Listen, conf)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return "refused", nil
	}
	return "accepted", nil
}

// certs is Envoy's page of the certificates that its clusters use.
type certs struct {
	Certificates []struct {
		CACert []struct {
			Serial string `json:"serial_number"`
		} `json:"ca_cert"`
		CertChain []struct {
			Serial string `json:"serial_number"`
		} `json:"cert_chain"`
	}
}

func (s *scene) certs() (certs, error) {
	var out certs
	page, err := s.envoy.Get("/certs")
	if err == nil {
		err = json.Unmarshal([]byte(page), &out)
	}
	return out, err
}

func (s *scene) envoySerial() (string, error) {
	page, err := s.certs()
	if err != nil || len(page.Certificates) == 0 || len(page.Certificates[0].CertChain) == 0 {
		return "", err
	}
	return page.Certificates[0].CertChain[0].Serial, nil
}

func (s *scene) envoyRoots() (string, error) {
	page, err := s.certs()
	if err != nil || len(page.Certificates) == 0 {
		return "", err
	}
	return fmt.Sprint(len(page.Certificates[0].CACert)), nil
}
