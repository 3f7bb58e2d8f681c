// Package v1alpha1 holds the types of the metaprotocol.aeraki.io/v1alpha1 API as protobuf messages.
// They are wire- and JSON-compatible with Aeraki's, whose module the registries do not serve.
// No logic lives here: package mesh decodes, package routes judges and compiles.
package v1alpha1
