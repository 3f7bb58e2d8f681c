package kubeclient

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// Quiet returns a context with which client-go logs to log, all of it at level debug: what an operator should
// know of it is told as Problems.
func Quiet(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, Logger(log))
}

// Logger is log for client-go, with everything at level debug.
func Logger(log *slog.Logger) klog.Logger { return logr.FromSlogHandler(debug{log.Handler()}) }

// debug is a handler that takes everything for level debug.
type debug struct{ slog.Handler }

func (d debug) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

func (d debug) Handle(ctx context.Context, r slog.Record) error {
	if !d.Enabled(ctx, r.Level) { // logr does not ask where it logs errors
		return nil
	}
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

func (d debug) WithAttrs(attrs []slog.Attr) slog.Handler { return debug{d.Handler.WithAttrs(attrs)} }

func (d debug) WithGroup(name string) slog.Handler { return debug{d.Handler.WithGroup(name)} }
