package cachemgr

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/routes"
)

// Name is what a proxy subscribes to: a resource name of a type.
type Name struct {
	Type string // type URL
	Name string
}

// Table is a Plan written in the type that was asked for. It is read-only and shared by all proxies
// whose Views see the same inputs.
type Table struct {
	Name
	Version string     // hash of the bytes, so that every replica gives the same
	Any     *anypb.Any // marshalled once
	Plan    *routes.Plan
}

// Spelling writes a Plan as a resource of some type under the given name.
type Spelling func(p *routes.Plan, name string) (proto.Message, error)

func newTable(n Name, p *routes.Plan, spell Spelling) (*Table, error) {
	message, err := spell(p, n.Name)
	if err != nil {
		return nil, err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("marshal %s: %w", n.Name, err)
	}
	sum := sha256.Sum256(value)
	return &Table{
		Name: n, Version: hex.EncodeToString(sum[:16]), Plan: p,
		Any: &anypb.Any{TypeUrl: n.Type, Value: value},
	}, nil
}
