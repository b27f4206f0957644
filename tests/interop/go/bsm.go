package main

// bsm/redislock over go-redis.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

var bsmRedislock = library{
	id:     "redislock",
	name:   "bsm/redislock",
	module: "github.com/bsm/redislock",
	open: func(addrs []string, ttl time.Duration) (locker, error) {
		client := newGoRedis(addrs[0])
		return &bsmLocker{client, redislock.New(client), ttl}, nil
	},
	keys: plainKey,
	own: []check{
		{"ttl and metadata", bsmTTLAndMetadata},
		{"own token obtains again", bsmSameToken},
	},
}

type bsmLocker struct {
	client *redis.Client
	locks  *redislock.Client
	ttl    time.Duration
}

type bsmHeld struct {
	lock *redislock.Lock
	ttl  time.Duration
}

func (l *bsmLocker) obtain(ctx context.Context, name string, opt *redislock.Options) (held, error) {
	lock, err := l.locks.Obtain(ctx, name, l.ttl, opt)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, errTaken
	}
	if err != nil {
		return nil, err
	}
	return &bsmHeld{lock, l.ttl}, nil
}

func (l *bsmLocker) try(ctx context.Context, name string) (held, error) {
	return l.obtain(ctx, name, nil)
}

func (l *bsmLocker) wait(ctx context.Context, name string) (held, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // the library gives up after the ttl where there is no deadline
	defer cancel()
	return l.obtain(ctx, name, &redislock.Options{RetryStrategy: redislock.LinearBackoff(50 * time.Millisecond)})
}

func (l *bsmLocker) close() { _ = l.client.Close() }

func (h *bsmHeld) extend(ctx context.Context) error {
	err := h.lock.Refresh(ctx, h.ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return errNotHeld
	}
	return err
}

func (h *bsmHeld) release(ctx context.Context) error {
	err := h.lock.Release(ctx)
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return errNotHeld
	}
	return err
}

func bsmTTLAndMetadata(ctx context.Context, t *trial) error {
	client := newGoRedis(t.nodes[0])
	defer client.Close()
	name := t.name("metadata")
	lock, err := redislock.Obtain(ctx, client, name, 10*time.Second, &redislock.Options{Metadata: "who=me"})
	if err != nil {
		return err
	}
	ttl, err := lock.TTL(ctx)
	if err != nil || ttl < 8*time.Second || ttl > 10*time.Second {
		return fmt.Errorf("TTL %v, %v", ttl, err)
	}
	owner, err := client.Get(ctx, name).Result()
	if err != nil || owner != lock.Token()+"who=me" {
		return fmt.Errorf("the key holds %q, %v", owner, err)
	}
	if err := lock.Release(ctx); err != nil {
		return err
	}
	if ttl, err := lock.TTL(ctx); ttl != 0 || err != nil {
		return fmt.Errorf("TTL after the release: %v, %v", ttl, err)
	}
	return nil
}

// bsmSameToken: whoever brings the same token is the same owner, whatever the metadata; nobody else is.
func bsmSameToken(ctx context.Context, t *trial) error {
	client := newGoRedis(t.nodes[0])
	defer client.Close()
	name := t.name("token")
	obtain := func(token string) (*redislock.Lock, error) {
		return redislock.Obtain(ctx, client, name, 10*time.Second, &redislock.Options{Token: token, Metadata: "m"})
	}
	if _, err := obtain("token-one"); err != nil {
		return err
	}
	if _, err := obtain("token-two"); !errors.Is(err, redislock.ErrNotObtained) {
		return fmt.Errorf("another token: %v", err)
	}
	again, err := obtain("token-one")
	if err != nil {
		return fmt.Errorf("the same token: %w", err)
	}
	return again.Release(ctx)
}
