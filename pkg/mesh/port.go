package mesh

import "strings"

// Port is a service port.
type Port struct {
	Number uint32
	Name   string
}

// MetaProtocol is the protocol, in a port's name, of the ports that get a table.
const MetaProtocol = "metaprotocol"

// Protocol is the second part of the port's name in lower case, as in tcp-metaprotocol-dubbo, or empty.
func (p Port) Protocol() string {
	parts := strings.Split(p.Name, "-")
	if len(parts) < 2 {
		return ""
	}
	return strings.ToLower(parts[1])
}

// Application is the third part of the port's name as written, or empty.
func (p Port) Application() string {
	parts := strings.Split(p.Name, "-")
	if len(parts) < 3 {
		return ""
	}
	return parts[2]
}

// Routed reports whether the port gets a table.
func (p Port) Routed() bool { return p.Protocol() == MetaProtocol }
