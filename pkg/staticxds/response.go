package staticxds

// Response is what one response has: of one type, and in state of the world all of it where the kind is whole.
type Response struct {
	Type      string
	Version   string      // of the type
	Resources []*Resource // by name
	Removed   []string    // by name; delta only

	kind    kind
	changed []string // names that the proxy does not have so
	missing []string // names that it has, and that this takes away
	going   bool     // it has resources that the file does not have any more
}

// Names returns the names of the resources.
func (r *Response) Names() []string {
	out := make([]string, len(r.Resources))
	for i, x := range r.Resources {
		out[i] = x.Name
	}
	return out
}

// Bytes is the size of the resources.
func (r *Response) Bytes() (n int) {
	for _, x := range r.Resources {
		n += len(x.Any.GetValue())
	}
	return n
}
