package envoyfilter

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"

	"github.com/metards/metards/pkg/problem"
)

// maxName is the longest name of a Kubernetes object.
const maxName = 253

var (
	validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	unusable  = regexp.MustCompile(`[^a-z0-9]+`)
)

func outboundName(k hostPort) string { return objectName("metards-outbound", k.host, k.port) }

// inboundName has the object's name, not the host's: two objects may declare one host for different workloads.
func inboundName(o problem.Object, port uint32) string {
	return objectName("metards-inbound-"+strings.ToLower(o.Kind), o.Name, port)
}

// objectName is prefix-text-port. What is no name so, as a host with a wildcard or a very long one, is told by a hash
// instead, after a dot, which no name of the first form has there.
func objectName(prefix, text string, port uint32) string {
	end := "-" + strconv.FormatUint(uint64(port), 10)
	if name := prefix + "-" + text + end; len(name) <= maxName && validName.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(text))
	end = "-" + hex.EncodeToString(sum[:8]) + end
	rest := strings.Trim(unusable.ReplaceAllString(text, "-"), "-")
	rest = rest[:min(len(rest), maxName-len(prefix)-len(end)-1)]
	return prefix + "." + strings.TrimPrefix(rest+end, "-")
}
