package routes

import (
	"strconv"
	"strings"

	"github.com/metards/metards/pkg/mesh"
)

// Name returns the resource name of a host's port: the host as written and the port number.
func Name(host string, port uint32) string {
	return host + "_" + strconv.FormatUint(uint64(port), 10)
}

// Names returns the resource names of a service's MetaProtocol ports.
func Names(s *mesh.Service) []string {
	var out []string
	for _, p := range s.Ports {
		if p.Routed() {
			out = append(out, Name(s.Host, p.Number))
		}
	}
	return out
}

// ParseName splits a resource name at its last underscore. It reports false if that is not followed by
// a port number from 1 to 65535 in its shortest form.
func ParseName(name string) (host string, port uint32, ok bool) {
	i := strings.LastIndexByte(name, '_')
	if i <= 0 {
		return "", 0, false
	}
	n, err := strconv.ParseUint(name[i+1:], 10, 16)
	if err != nil || n == 0 || Name(name[:i], uint32(n)) != name {
		return "", 0, false
	}
	return name[:i], uint32(n), true
}
