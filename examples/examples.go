// Package examples holds the example directories, so that the demo carries them with it.
package examples

import "embed"

// Files are the example directories; each can be given to metards serve, render and validate.
//
//go:embed dubbo-canary thrift-canary
var Files embed.FS
